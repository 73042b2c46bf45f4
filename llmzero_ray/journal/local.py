"""Journal store in a directory, with one file per object."""

from __future__ import annotations

import os
from pathlib import Path

from llmzero_ray.journal.base import unreadable
from llmzero_ray.utils.files import create_file, storage_error


class LocalStore:
    """Store in a local or mounted directory, which is created with the first object."""

    n_parallel = 1

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __str__(self) -> str:
        return str(self.directory)

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder. Empty if it does not exist."""
        try:
            return os.listdir(self.directory / folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(str(self.directory / folder), error) from error

    def read(self, name: str) -> bytes:
        """Content of a file."""
        try:
            with open(f"{self.directory}/{name}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(f"{self}/{name}", error) from error

    def exists(self, name: str) -> bool:
        """Whether a file of this name exists."""
        try:
            os.stat(f"{self.directory}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise unreadable(f"{self}/{name}", error) from error
        return True

    def create(self, name: str, content: bytes) -> None:
        """Create a file atomically. The file and its name are on disk when this returns."""
        create_file(self.directory / name, content)

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        try:
            os.unlink(self.directory / name)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise storage_error(self.directory / name, error) from error
