"""Measures Leveret, beside RabbitMQ where that is installed: `python -m benchmarks`. See docs/benchmarks.md.

The packages import only those that stand above them in this list, and are all below the modules here.

    ruler       brokers as processes, publishers and consumers that cost little, the workloads
    single      what one node is measured by: latency, backlogs, more and more of everything
    clusters    what several nodes are measured by: clients elsewhere, mirrors, failover
    report      results as JSON, tables and plots
    scaling     how a cluster grows to fifty nodes, in virtual time: `python -m benchmarks.scaling`
"""
