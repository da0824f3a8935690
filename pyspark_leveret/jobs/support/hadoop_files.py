"""Folders and files where Spark keeps data, on a disk, in HDFS, in an object store: what Hadoop's classes reach.

Rows are read and written by Spark. This is for the little around them: which folders there are, whether something was
done already, and names that change when it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Entry(NamedTuple):
    path: str
    name: str
    is_folder: bool
    bytes: int  # Of a file.
    changed_ms: int


class Files:
    """The file system that a path belongs to."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        inside: Any = spark
        self._jvm = inside._jvm
        self._system = self._path(root).getFileSystem(inside._jsparkSession.sessionState().newHadoopConf())

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def entries(self, folder: str) -> list[Entry]:
        """By name. None, if there is no such folder."""
        if not self.exists(folder):
            return []
        found = [
            Entry(
                f"{folder.rstrip('/')}/{one.getPath().getName()}",
                one.getPath().getName(),
                one.isDirectory(),
                one.getLen(),
                one.getModificationTime(),
            )
            for one in self._system.listStatus(self._path(folder))
        ]
        return sorted(found, key=lambda one: one.name)

    def total_bytes(self, folder: str) -> int:
        return int(self._system.getContentSummary(self._path(folder)).getLength())

    def delete(self, path: str) -> None:
        """With all that is in it. One that is not there is no error."""
        self._system.delete(self._path(path), True)

    def rename(self, path: str, to: str) -> None:
        """Raises OSError. `to` must not be there: a folder would be put into it."""
        if self.exists(to) or not self._system.rename(self._path(path), self._path(to)):
            raise OSError(f"cannot rename {path} to {to}")

    def create(self, path: str, text: str) -> bool:
        """A new file; False if there is one already. It may be there and not be whole, if the process dies
        meanwhile."""
        if self.exists(path):
            return False
        stream = self._system.create(self._path(path), False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        return True

    def read(self, path: str) -> str:
        stream = self._system.open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)
