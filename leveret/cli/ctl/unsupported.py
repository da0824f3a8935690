"""Commands of RabbitMQ's tools that are not offered, each with the reason. docs/differences.md has the same list."""

from __future__ import annotations

from typing import Final

_ERLANG: Final = "it looks into the Erlang machine, and this broker runs without one"
_SECRETS: Final = (
    "configuration files hold no encrypted values here; keep secrets in cookie_file, in LEVERET_* variables, or in a "
    "file that only the node's user may read"
)
_EVENTS: Final = "there is no stream of events here; the log, the metrics and list_* tell what happens"
_COPIES: Final = (
    "the copies of a quorum queue follow its policy here; see: leveretctl help set_policy, add_queue_mirror_link"
)
_MOVING: Final = "messages are not moved between brokers here; docs/migrating-from-rabbitmq.md shows how to"
_TRACKING: Final = "attempts to log in are told in the log, and not counted by where they came from"

REFUSED: Final[dict[str, str]] = {
    "eval": "it runs Erlang code in the node. To change a setting or set an alarm: leveretctl help set_env, set_alarm",
    "eval_file": "it runs Erlang code in the node",
    "exec": "it runs Elixir code in the tool",
    "remote_shell": _ERLANG,
    "observer": _ERLANG,
    "runtime_thread_stats": _ERLANG,
    "maybe_stuck": _ERLANG,
    "erlang_version": "this broker runs on Python; status says on which",
    "resolver_info": "Erlang has a resolver of its own; here the system's is used. See: leveretctl resolve_hostname",
    "list_network_interfaces": "the system's own tools say more: ip address. See also: leveretctl listeners",
    "force_gc": "memory is given back by itself; see: leveretctl memory_breakdown",
    "encode": _SECRETS,
    "decode": _SECRETS,
    "encrypt_conf_value": _SECRETS,
    "decrypt_conf_value": _SECRETS,
    "list_ciphers": f"they are for encode. {_SECRETS}",
    "list_hashes": f"they are for encode. {_SECRETS}",
    "consume_event_stream": _EVENTS,
    "schema_info": "metadata is not kept in Mnesia's tables here; see: leveretctl export_definitions",
    "change_cluster_node_type": "every node keeps the cluster's metadata on disk; there are no RAM nodes",
    "update_cluster_nodes": "a node that comes back finds its cluster by itself, also where addresses have changed",
    "grow": _COPIES,
    "shrink": _COPIES,
    "reclaim_quorum_memory": "a quorum queue has no write-ahead log of its own here",
    "set_stream_retention_policy": "max-age and max-length-bytes of a policy say it; see: leveretctl help set_policy",
    "shovel_status": _MOVING,
    "delete_shovel": _MOVING,
    "restart_shovel": _MOVING,
    "federation_status": _MOVING,
    "restart_federation_link": _MOVING,
    "list_node_auth_attempt_stats": _TRACKING,
    "reset_node_auth_attempt_metrics": _TRACKING,
    "disable_auth_attempt_source_tracking": _TRACKING,
    "enable_auth_attempt_source_tracking": _TRACKING,
    "hipe_compile": _ERLANG,
}
