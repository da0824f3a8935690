"""Runs seeds: see the package."""

from __future__ import annotations

import sys

from simulation import own_command
from simulation.mqtt.world import MqttWorld

if __name__ == "__main__":
    sys.exit(own_command.main("mqtt", MqttWorld))
