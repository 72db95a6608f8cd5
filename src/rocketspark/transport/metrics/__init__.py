"""Metrics on their way out: scraped by Prometheus (server), sent by OTLP or written to the log (export, otlp).

Start with families: what a collection gives, whoever it goes to.
"""
