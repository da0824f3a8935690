"""Files and folders wherever Spark keeps data, on a disk, in HDFS or in an object store, through Hadoop's classes.

Spark reads and writes the rows. This module does the little around them: it lists folders, and creates, renames and
deletes files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Entry(NamedTuple):
    path: str
    name: str
    is_folder: bool
    bytes: int  # 0 for a folder.
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
        """Returns the entries of a folder by name; none if there is no such folder."""
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
        """Deletes a file, or a folder with its contents. A missing path is no error."""
        self._system.delete(self._path(path), True)

    def rename(self, path: str, to: str) -> None:
        """Renames a path. Raises OSError, also if `to` exists: Hadoop would move the path into such a folder."""
        if self.exists(to) or not self._system.rename(self._path(path), self._path(to)):
            raise OSError(f"cannot rename {path} to {to}")

    def create(self, path: str, text: str) -> bool:
        """Creates a file; returns False if it exists already. If the process dies meanwhile, the file may be
        incomplete."""
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
