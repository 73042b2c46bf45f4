"""A journal's objects as files of a directory.

Not here: creating a file in one step (llmzero_ray/utils/files.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from llmzero_ray.journal.base import unreadable
from llmzero_ray.utils.files import create_file, storage_error


class LocalStore:
    """A directory of this machine, or one that is mounted; made when the first object is."""

    n_parallel = 1

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __str__(self) -> str:
        return str(self.directory)

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder; none when it does not exist."""
        try:
            return os.listdir(self.directory / folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(str(self.directory / folder), error) from error

    def read(self, name: str) -> bytes:
        """What is in a file."""
        try:
            with open(f"{self.directory}/{name}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(f"{self}/{name}", error) from error

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        try:
            os.stat(f"{self.directory}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise unreadable(f"{self}/{name}", error) from error
        return True

    def create(self, name: str, content: bytes) -> None:
        """Make a file in one step; both it and its name are on the disk when this returns."""
        create_file(self.directory / name, content)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        try:
            os.unlink(self.directory / name)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise storage_error(self.directory / name, error) from error
