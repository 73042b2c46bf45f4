"""How a journal's events lie in a store: names, bodies, segments, claims, and the stores themselves.

    00000042.e002.json           one event: format, number, epoch, journal, writer, checksum, event
    00000001-00000512.segment    old events in one object, a line each; their single files are deleted
    epochs/002.json              who writes in epoch 2; epochs/002.<writer>.json on object stores

Not here: appending (llmzero_ray/journal.py), what events mean (coordinator/).
"""

from llmzero_ray.journals.opening import open_store
from llmzero_ray.journals.reader import Damage, Entry, JournalReader
from llmzero_ray.journals.stores import JournalStore, LocalStore

__all__ = ["Damage", "Entry", "JournalReader", "JournalStore", "LocalStore", "open_store"]
