"""In-process replacement for VeRL's TransferQueue, used while no other process needs it.

The package's queue consists of two or more actors, and every value passes through them twice. If one rank
trains and batches need no agent loop, VeRL's trainer is the only client. This queue then answers its calls,
and the rank gets its columns with the call (`ByValueWorkerGroup`). Once agent loops start, everything moves
to the package's queue and stays there.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_CALLS = ("kv_batch_put", "kv_batch_get", "kv_list", "kv_clear")
"""Functions of the package that VeRL's trainer and replay buffer call."""


@dataclass
class _Sample:
    tag: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)


class LocalQueue:
    """Samples by partition and key, each with a tag and columns. Methods are named like the package's
    functions."""

    def __init__(self, start_package: Callable[[], Any]) -> None:
        """`start_package` starts the package's own queue and returns once it is usable."""
        self._start_package = start_package
        self._lock = threading.RLock()
        self._partitions: dict[str, dict[str, _Sample]] = {}
        self._replaced: dict[str, Any] = {}

    @property
    def is_installed(self) -> bool:
        """Whether VeRL's calls go to this queue."""
        return bool(self._replaced)

    def install(self) -> None:
        """Start answering the queue calls that VeRL makes in this process."""
        import transfer_queue

        self._replaced = {name: getattr(transfer_queue, name) for name in _CALLS}
        for name in _CALLS:
            setattr(transfer_queue, name, getattr(self, name))

    def migrate_to_package(self) -> None:
        """Start the package's queue, move everything there, and stop answering calls. Idempotent."""
        import transfer_queue

        with self._lock:
            if not self.is_installed:
                return
            self._start_package()
            for name, function in self._replaced.items():
                setattr(transfer_queue, name, function)
            self._replaced = {}
            for partition, samples in self._partitions.items():
                _move(partition, samples)
            self._partitions = {}

    # --- the package's functions ---------------------------------------------------------------------------

    def kv_batch_put(
        self,
        keys: Sequence[str],
        partition_id: str,
        fields: Any = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> Any:
        """Add columns (a TensorDict) and tags of samples, and return their KVBatchMeta.

        Raises:
            ValueError: both are missing, or one differs in length from `keys`.
        """
        from transfer_queue import KVBatchMeta

        if fields is None and tags is None:
            raise ValueError("neither fields nor tags to put")
        given_columns = {} if fields is None else dict(fields.items())
        columns = {name: _rows(column) for name, column in given_columns.items()}
        for what, given in (("tags", tags), *columns.items()):
            if given is not None and len(given) != len(keys):
                raise ValueError(f"{len(given)} {what} for {len(keys)} keys")
        with self._lock:
            known = self._partitions.setdefault(partition_id, {})
            samples = [known.setdefault(key, _Sample()) for key in keys]
            for place, sample in enumerate(samples):
                sample.tag.update(tags[place] if tags is not None else {})
                sample.columns.update({name: rows[place] for name, rows in columns.items()})
            return KVBatchMeta(
                keys=list(keys),
                tags=[sample.tag for sample in samples],  # KVBatchMeta copies them
                partition_id=partition_id,
                fields=_common_names(samples),
            )

    def kv_batch_get(
        self, keys: Sequence[str] | str, partition_id: str, select_fields: Sequence[str] | str | None = None
    ) -> Any:
        """Columns that all of these samples have, as a TensorDict, restricted to `select_fields`. If there
        are none, it is empty and has batch size 0.

        Raises:
            ValueError: a sample is missing. (The package drops missing ones, and raises only if all are
                missing.)
        """
        keys = [keys] if isinstance(keys, str) else list(keys)
        wanted = [select_fields] if isinstance(select_fields, str) else select_fields
        with self._lock:
            known = self._partitions.get(partition_id, {})
            if missing := [key for key in keys if key not in known]:
                raise ValueError(
                    f"{len(missing)} of {len(keys)} keys are not in {partition_id!r}: {missing[0]}"
                )
            samples = [known[key] for key in keys]
            common = _common_names(samples)
            return _packed(samples, common if wanted is None else [name for name in wanted if name in common])

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        """Partition -> key -> tag."""
        with self._lock:
            names = list(self._partitions) if partition_id is None else [partition_id]
            return {
                name: {key: dict(sample.tag) for key, sample in self._partitions.get(name, {}).items()}
                for name in names
            }

    def kv_clear(self, keys: Sequence[str] | str, partition_id: str) -> None:
        """Remove samples, if they exist."""
        with self._lock:
            for key in [keys] if isinstance(keys, str) else keys:
                self._partitions.get(partition_id, {}).pop(key, None)


class ByValueWorkerGroup:
    """VeRL's worker group for one rank. While a LocalQueue is in use, it sends the rank the columns of a
    batch instead of its keys."""

    def __init__(self, workers: Any, queue: LocalQueue) -> None:
        self._workers, self._queue = workers, queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)

    def compute_log_prob(self, batch: Any) -> Any:
        """Same as VeRL's. Puts the columns that the rank returns into the queue, as VeRL's workers do."""
        if not self._queue.is_installed:
            return self._workers.compute_log_prob(batch)
        output = self._workers.compute_log_prob(self._columns_of(batch))
        values = dict(output.items())
        tensors = [name for name, value in values.items() if not _is_batch_level(value)]
        found = self._queue.kv_batch_put(batch.keys, batch.partition_id, output.select(*tensors))
        found.tags = batch.tags
        found.extra_info = {name: value.data for name, value in values.items() if name not in tensors}
        return found

    def update_actor(self, batch: Any) -> Any:
        """Same as VeRL's."""
        return self._workers.update_actor(self._columns_of(batch) if self._queue.is_installed else batch)

    def _columns_of(self, batch: Any) -> Any:
        """Columns that a KVBatchMeta names (all if it names none), with its extra information."""
        from verl.utils import tensordict_utils

        data = self._queue.kv_batch_get(batch.keys, batch.partition_id, batch.fields)
        for name, value in copy.deepcopy(batch.extra_info).items():
            tensordict_utils.assign_non_tensor_data(tensor_dict=data, key=name, val=value)
        return data


def _move(partition: str, samples: Mapping[str, _Sample]) -> None:
    """Put samples into the package's queue, with one call for each set of columns."""
    import transfer_queue

    alike: dict[tuple[str, ...], list[str]] = {}
    for key, sample in samples.items():
        alike.setdefault(tuple(sample.columns), []).append(key)
    for names, keys in alike.items():
        own = [samples[key] for key in keys]
        transfer_queue.kv_batch_put(
            keys=keys,
            partition_id=partition,
            fields=_packed(own, names) if names else None,
            tags=[sample.tag for sample in own],
        )


def _common_names(samples: Sequence[_Sample]) -> list[str]:
    first = samples[0].columns if samples else {}
    return [name for name in first if all(name in sample.columns for sample in samples)]


def _packed(samples: Sequence[_Sample], names: Sequence[str]) -> Any:
    """These columns, packed like the package does, which copies tensors."""
    from tensordict import TensorDict
    from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

    pack = AsyncSimpleStorageManager._pack_field_values
    return TensorDict(
        {name: pack([_copied(sample.columns[name]) for sample in samples]) for name in names},
        batch_size=len(samples) if names else 0,
    )


def _rows(column: Any) -> list[Any]:
    """Values of a TensorDict's column by sample, without copying."""
    from tensordict import NonTensorStack

    return list(column.tolist() if isinstance(column, NonTensorStack) else column.unbind())


def _is_batch_level(column: Any) -> bool:
    from tensordict import NonTensorData

    return isinstance(column, NonTensorData)


def _copied(value: Any) -> Any:
    """Copy of a mutable value, except tensors."""
    return copy.deepcopy(value) if isinstance(value, dict | list) else value
