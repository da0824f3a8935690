"""Commands of leveretctl and of the HTTP API, as a node carries them out.

`dispatch` finds the command and checks its arguments. `common` has what all commands share; `queues`, `nodes`,
`metadata` and `statistics` have the commands themselves.

The server of a node imports `dispatch`. It imports all of the node but `server` and `node`.
"""
