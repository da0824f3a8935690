"""Commands of RabbitMQ's tools that are not offered, each with the reason. docs/differences.md has the same list."""

from __future__ import annotations

from typing import Final

_ERLANG: Final = "it inspects the Erlang virtual machine, and this broker does not run on one"
_SECRETS: Final = (
    "configuration files have no encrypted values here; keep secrets in cookie_file, in LEVERET_* variables, or in a "
    "file that only the node's user may read"
)
_EVENTS: Final = "there is no stream of events here; use the log, the metrics and the list_* commands"
_COPIES: Final = (
    "the copies of a quorum queue follow its policy here; see: leveretctl help set_policy, add_queue_mirror_link"
)
_TRACKING: Final = "login attempts are logged, and not counted by their source"

REFUSED: Final[dict[str, str]] = {
    "eval_file": "it runs Erlang code in the node",
    "exec": "it runs Elixir code in the tool",
    "remote_shell": _ERLANG,
    "observer": _ERLANG,
    "runtime_thread_stats": _ERLANG,
    "maybe_stuck": _ERLANG,
    "erlang_version": "this broker runs on Python; status shows its version",
    "resolver_info": "Erlang has a resolver of its own; here the system's is used. See: leveretctl resolve_hostname",
    "list_network_interfaces": "use the system's own tools, such as ip address. See also: leveretctl listeners",
    "force_gc": "memory is freed automatically; see: leveretctl memory_breakdown",
    "encode": _SECRETS,
    "decode": _SECRETS,
    "encrypt_conf_value": _SECRETS,
    "decrypt_conf_value": _SECRETS,
    "list_ciphers": f"encode would use them. {_SECRETS}",
    "list_hashes": f"encode would use them. {_SECRETS}",
    "consume_event_stream": _EVENTS,
    "schema_info": "metadata is not stored in Mnesia here; see: leveretctl export_definitions",
    "change_cluster_node_type": "every node stores the cluster's metadata on disk; there are no RAM nodes",
    "update_cluster_nodes": "a node finds its cluster again by any node that it knows, even if addresses have changed",
    "grow": _COPIES,
    "shrink": _COPIES,
    "reclaim_quorum_memory": "a quorum queue has no write-ahead log of its own here",
    "set_stream_retention_policy": "use max-age and max-length-bytes in a policy; see: leveretctl help set_policy",
    "list_node_auth_attempt_stats": _TRACKING,
    "reset_node_auth_attempt_metrics": _TRACKING,
    "disable_auth_attempt_source_tracking": _TRACKING,
    "enable_auth_attempt_source_tracking": _TRACKING,
    "hipe_compile": _ERLANG,
}
