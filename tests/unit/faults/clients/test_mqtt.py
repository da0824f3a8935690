"""Tests of the MQTT clients of real faults: they keep to the protocol, whatever fails."""

from __future__ import annotations

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from faults.clients.mqtt import FaithfulPaho


def test_a_message_that_was_answered_is_not_published_anew_after_two_attempts_to_connect() -> None:
    client = FaithfulPaho(CallbackAPIVersion.VERSION2, "c", clean_session=False)
    mid = client.publish("t", b"1", qos=2).mid
    client._out_messages[mid].state = paho.mqtt_ms_wait_for_pubcomp  # PUBREC has come.
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            client.connect("127.0.0.1", 1)
    assert client._out_messages[mid].state == paho.mqtt_ms_resend_pubrel
