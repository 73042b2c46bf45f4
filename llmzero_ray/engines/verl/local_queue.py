"""VeRL's TransferQueue in the memory of the process that embeds VeRL, where no other process needs it.

The package's queue is two or more actors, and every value passes through them twice. Where one rank trains
and batches need no agent loop, VeRL's trainer is the only one who puts and gets: this queue answers its
calls, and the rank is given its columns with the call (`RankByValue`). Once agent loops are started
everything moves to the package's queue, and stays there.

Not here: starting the package's queue (driver.py), who needs it (agent_loops.py).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_CALLS = ("kv_batch_put", "kv_batch_get", "kv_list", "kv_clear")
"""What VeRL's trainer and replay buffer call, each by its name in the package."""


class LocalQueue:
    """Samples by partition and key: a tag each, and columns; as the package's functions of the same names."""

    def __init__(self, start_package: Callable[[], Any]) -> None:
        """`start_package` starts the package's own queue, and returns when its functions can be used."""
        self._start_package = start_package
        self._lock = threading.RLock()
        self._tags: dict[str, dict[str, dict[str, Any]]] = {}
        self._values: dict[str, dict[str, dict[str, Any]]] = {}
        self._replaced: dict[str, Any] = {}

    @property
    def is_used(self) -> bool:
        """Whether VeRL's calls come here."""
        return bool(self._replaced)

    def take_calls(self) -> None:
        """Answer what VeRL in this process asks its queue, from now on."""
        import transfer_queue

        self._replaced = {name: getattr(transfer_queue, name) for name in _CALLS}
        for name in _CALLS:
            setattr(transfer_queue, name, getattr(self, name))

    def give_calls_back(self) -> None:
        """Start the package's queue, move everything there, and answer no more; nothing where that has been
        done."""
        import transfer_queue

        with self._lock:
            if not self.is_used:
                return
            self._start_package()
            for name, function in self._replaced.items():
                setattr(transfer_queue, name, function)
            self._replaced = {}
            for partition, tags in self._tags.items():
                self._move(partition, tags)
            self._tags, self._values = {}, {}

    def _move(self, partition: str, tags: Mapping[str, dict[str, Any]]) -> None:
        """One call for all keys with the same columns."""
        import transfer_queue

        alike: dict[tuple[str, ...], list[str]] = {}
        for key in tags:
            alike.setdefault(tuple(self._values[partition][key]), []).append(key)
        for names, keys in alike.items():
            fields = self._columns(keys, partition, names) if names else None
            transfer_queue.kv_batch_put(
                keys=keys, partition_id=partition, fields=fields, tags=[tags[key] for key in keys]
            )

    # --- the package's functions ---------------------------------------------------------------------------

    def kv_batch_put(
        self,
        keys: Sequence[str],
        partition_id: str,
        fields: Any = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> Any:
        """Columns (a TensorDict) and tags of samples, added to those that are there; gives their KVBatchMeta.

        Raises:
            ValueError: neither is given, or one has another length than `keys`.
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
            of_tags = self._tags.setdefault(partition_id, {})
            of_values = self._values.setdefault(partition_id, {})
            for place, key in enumerate(keys):
                of_tags.setdefault(key, {}).update(tags[place] if tags is not None else {})
                of_values.setdefault(key, {}).update({name: rows[place] for name, rows in columns.items()})
            names = self._common_names(keys, partition_id)
            return KVBatchMeta(
                keys=list(keys),
                tags=[of_tags[key] for key in keys],  # copied there
                partition_id=partition_id,
                fields=names,
            )

    def kv_batch_get(
        self, keys: Sequence[str] | str, partition_id: str, select_fields: Sequence[str] | str | None = None
    ) -> Any:
        """The columns that all of these samples have, as a TensorDict; of `select_fields` those. Empty, of
        batch size 0, where there is none.

        Raises:
            ValueError: a sample is not there. (The package leaves some out, and refuses where it has none.)
        """
        keys = [keys] if isinstance(keys, str) else list(keys)
        wanted = [select_fields] if isinstance(select_fields, str) else select_fields
        with self._lock:
            known = self._values.get(partition_id, {})
            if missing := [key for key in keys if key not in known]:
                raise ValueError(
                    f"{len(missing)} of {len(keys)} keys are not in {partition_id!r}: {missing[0]}"
                )
            common = self._common_names(keys, partition_id)
            names = common if wanted is None else [name for name in wanted if name in common]
            return self._columns(keys, partition_id, names)

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        """Partition -> key -> tag."""
        with self._lock:
            chosen = self._tags if partition_id is None else {partition_id: self._tags.get(partition_id, {})}
            return {name: {key: dict(tag) for key, tag in tags.items()} for name, tags in chosen.items()}

    def kv_clear(self, keys: Sequence[str] | str, partition_id: str) -> None:
        """Forget samples, if they are there."""
        with self._lock:
            for key in [keys] if isinstance(keys, str) else keys:
                self._tags.get(partition_id, {}).pop(key, None)
                self._values.get(partition_id, {}).pop(key, None)

    def _common_names(self, keys: Sequence[str], partition: str) -> list[str]:
        known = self._values.get(partition, {})
        first = known[keys[0]] if keys else {}
        return [name for name in first if all(name in known[key] for key in keys)]

    def _columns(self, keys: Sequence[str], partition: str, names: Sequence[str]) -> Any:
        from tensordict import TensorDict
        from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

        known, pack = self._values[partition], AsyncSimpleStorageManager._pack_field_values
        return TensorDict(
            {name: pack([_own(known[key][name]) for key in keys]) for name in names},
            batch_size=len(keys) if names else 0,
        )


class RankByValue:
    """VeRL's worker group of one rank, which is given a batch's columns and not its keys while a LocalQueue
    is used."""

    def __init__(self, workers: Any, queue: LocalQueue) -> None:
        self._workers, self._queue = workers, queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)

    def compute_log_prob(self, batch: Any) -> Any:
        """VeRL's; the columns that the rank gives are put into the queue, as VeRL's workers do."""
        if not self._queue.is_used:
            return self._workers.compute_log_prob(batch)
        output = self._workers.compute_log_prob(self._of(batch))
        values = dict(output.items())
        tensors = [name for name, value in values.items() if not _is_for_all(value)]
        found = self._queue.kv_batch_put(batch.keys, batch.partition_id, output.select(*tensors))
        found.tags = batch.tags
        found.extra_info = {name: value.data for name, value in values.items() if name not in tensors}
        return found

    def update_actor(self, batch: Any) -> Any:
        """VeRL's."""
        return self._workers.update_actor(self._of(batch) if self._queue.is_used else batch)

    def _of(self, batch: Any) -> Any:
        """The columns that a KVBatchMeta names (all, if it names none), with its extra information."""
        from verl.utils import tensordict_utils

        data = self._queue.kv_batch_get(batch.keys, batch.partition_id, batch.fields)
        for name, value in copy.deepcopy(batch.extra_info).items():
            tensordict_utils.assign_non_tensor_data(tensor_dict=data, key=name, val=value)
        return data


def _rows(column: Any) -> list[Any]:
    """A column of a TensorDict sample by sample; nothing is copied."""
    from tensordict import NonTensorStack

    return list(column.tolist() if isinstance(column, NonTensorStack) else column.unbind())


def _is_for_all(column: Any) -> bool:
    from tensordict import NonTensorData

    return isinstance(column, NonTensorData)


def _own(value: Any) -> Any:
    """A copy of what a reader could write into; packing copies tensors."""
    return copy.deepcopy(value) if isinstance(value, dict | list) else value
