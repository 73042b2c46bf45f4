"""Sends one message through Apprise.

    python -m llmzero_ray.tracking.send_alert

The standard input is a JSON object of `urls` (separated by spaces), `title` and `body`. The standard output
is one sentence about what went wrong, which shows no address. Exit code 1: no service accepted the message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from llmzero_ray.utils.api_key import NOTIFY_URLS
from llmzero_ray.utils.plugins import import_problem


def send(message: Mapping[str, str]) -> tuple[str, bool]:
    """Send a message. Returns (problems, whether a service accepted it); problems name a service by its
    number and kind."""
    if problem := import_problem("apprise"):
        return f"apprise {problem} on the coordinator's machine; `pip install 'llmzero-ray[notify]'`", False
    import apprise

    wrong, taken = [], False
    for number, url in enumerate(message["urls"].split(), start=1):
        service = apprise.Apprise()
        if not service.add(url):
            wrong.append(f"no. {number} is not an address that Apprise knows")
        elif service.notify(message["body"], message["title"], body_format=apprise.NotifyFormat.TEXT):
            taken = True
        else:
            wrong.append(f"no. {number} ({service[0].service_name}) did not take the message")
    return f"of {NOTIFY_URLS}, {'; '.join(wrong)}" if wrong else "", taken


def main() -> int:
    """Send the message on the standard input, and return the exit code."""
    said, taken = send(json.load(sys.stdin))
    print(said)  # noqa: T201
    return 0 if taken else 1


if __name__ == "__main__":
    sys.exit(main())
