"""Journal of a search: its events in a directory or object store, durable before anything acts on them.

00000042.e002.json           one event: format, number, epoch, journal, writer, checksum, event
00000001-00000512.segment    old events in one object, one per line; their single files are deleted
epochs/002.json              the writer of epoch 2
"""

from llmzero_ray.journal.base import JournalStore
from llmzero_ray.journal.local import LocalStore
from llmzero_ray.journal.opening import check_server, is_trusted, open_store, trust
from llmzero_ray.journal.reader import JournalReader, read_all
from llmzero_ray.journal.writer import ActiveTime, Journal, active_seconds, keep_initialization

__all__ = [
    "ActiveTime",
    "Journal",
    "JournalReader",
    "JournalStore",
    "LocalStore",
    "active_seconds",
    "check_server",
    "is_trusted",
    "keep_initialization",
    "open_store",
    "read_all",
    "trust",
]
