"""A node whose metadata names the cluster by something that is no id."""

from __future__ import annotations

from pathlib import Path

from leveret.links.proposals import ORIGIN_BYTES
from leveret.metadata.command_codec import decode_command
from leveret.metadata.rules.global_parameters import CLUSTER_ID, parse_cluster_id
from leveret.metadata.store import Metadata
from leveret.node.cluster.consensus_log import ConsensusLog
from leveret.node.system.data_folder import METADATA
from leveret.raft import Kind, Snapshot, SnapshotMeta
from leveret.raft.membership import decode_membership
from leveret.storage.segments.disk import FileDisk
from tests.support.members import Member


def spoil(data: Path) -> None:
    """Leave a snapshot of the metadata as an earlier version could have made it."""
    disk = FileDisk(str(data))
    log = ConsensusLog(disk, METADATA)
    recovered = log.recover()
    metadata = Metadata()
    membership = recovered.meta.membership
    for entry in recovered.entries[: recovered.commit]:
        if entry.kind is Kind.COMMAND:
            metadata.apply(decode_command(entry.data[2 * ORIGIN_BYTES :]))
        elif entry.kind is Kind.MEMBERSHIP:
            membership = decode_membership(entry.data)
        last = entry
    metadata.global_parameters[CLUSTER_ID] = "zz"
    job = log.put_snapshot(Snapshot(SnapshotMeta(last.index, last.term, membership), metadata.snapshot()))
    assert job is not None
    job.perform(disk)
    disk.close()


def test_a_node_starts_and_gives_the_cluster_another(tmp_path: Path) -> None:
    server = Member(tmp_path / "one", "one@localhost", "")
    server.start()
    server.stop()
    spoil(server.data)
    server.start()
    server.connect().channel().queue_declare("q")
    server.stop()
    log = server.log()
    assert "the cluster's internal_cluster_id is 'zz', which is not an id" in log
    server.start()
    kept = {one["name"]: one["value"] for one in server.control("list_global_parameters")}
    server.stop()
    assert parse_cluster_id(kept[CLUSTER_ID].strip('"')) is not None
    assert server.log().count("which is not an id") == 1
