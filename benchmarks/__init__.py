"""Measures Leveret, and RabbitMQ and Mosquitto if they are installed: `python -m benchmarks`. See docs/benchmarks.md.

The packages import only those that stand above them in this list, and are all below the modules here.

    ruler       brokers as processes, publishers and consumers that cost little, the workloads
    single      measurements of one node: latency, backlogs, growing numbers of everything
    clusters    measurements of several nodes: clients at other nodes, mirrors, failover
    mqtt        measurements of MQTT: rates, idle connections, retained messages
    stomp       measurements of STOMP: SEND with receipts, MESSAGE with acknowledgements
    report      results as JSON, tables and plots
    scaling     how a cluster grows to fifty nodes, in virtual time: `python -m benchmarks.scaling`
"""
