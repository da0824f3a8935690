"""What a node tells about itself."""

from __future__ import annotations

from leveret.node.admin.nodes.node_details import against_defaults


def test_a_setting_without_a_default_differs_from_it() -> None:
    told = against_defaults(
        {"mqtt.listeners.tcp.1": "1883", "heartbeat": "60", "channel_max": "7"},
        {"heartbeat": "60", "channel_max": "2047"},
    )
    assert told == [
        {"key": "channel_max", "value": "7", "default": "2047", "is_default": False},
        {"key": "heartbeat", "value": "60", "default": "60", "is_default": True},
        {"key": "mqtt.listeners.tcp.1", "value": "1883", "default": None, "is_default": False},
    ]
