"""A provider for Airflow 3: a hook, operators that produce and consume, and one that waits for a message.

Start with operators and hook.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow lists of the provider; found by the entry point `apache_airflow_provider`."""
    return {
        "package-name": "rocketspark",
        "name": "RocketMQ",
        "description": "Apache RocketMQ, by RocketSpark's clients.",
        "integrations": [{"integration-name": "RocketMQ", "external-doc-url": "https://rocketmq.apache.org"}],
        "hooks": [{"integration-name": "RocketMQ", "python-modules": ["rocketspark.airflow.hook"]}],
        "operators": [{"integration-name": "RocketMQ", "python-modules": ["rocketspark.airflow.operators"]}],
        "triggers": [{"integration-name": "RocketMQ", "python-modules": ["rocketspark.airflow.trigger"]}],
        "connection-types": [
            {
                "connection-type": "rocketmq",
                "hook-name": "RocketMQ",
                "hook-class-name": "rocketspark.airflow.hook.RocketMQHook",
            }
        ],
    }
