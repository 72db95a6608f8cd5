"""Serves the requests about lite topics.

Start with lite_subscription_ctl; what it changes lies in rocketspark.broker.lite.
"""
