"""Helpers that all jobs share.

- `common`: options, the Spark session, and error texts of a command.
- `quick_python`: a Python for Spark's processes that starts faster.
- `signals`: Ctrl-C and SIGTERM.
- `schedule`: when a repeated job is due.
- `job_status`: reports the state of a job to the broker, whose page shows it.
- `hadoop_files`: files and folders wherever Spark keeps data.
- `rate_limit`: limits the rate at which rows are published.
- `charts`: charts as inline SVG.

For the jobs only. It imports the connector's shared modules and no job.
"""
