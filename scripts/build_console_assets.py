"""Hatch's hook: wheels and source archives hold what browsers get of npm packages, fetched by version and hash."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleAssets(BuildHookInterface):
    """Fetches the files before a build, if they are not there. Without npm the build goes on, and says so."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        path = Path(self.root) / "src" / "rocketspark" / "console" / "assets.py"
        spec = importlib.util.spec_from_file_location("console_assets", path)
        assert spec is not None
        assert spec.loader is not None
        assets = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(assets)
        try:
            assets.fetch()
        except assets.AssetsError as e:
            print(f"this build has no console for browsers: {e}", file=sys.stderr)
