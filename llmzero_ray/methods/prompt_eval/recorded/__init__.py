"""The set of recorded requests that ships: `*.json.gz`, written by `llmzero prompt-eval --record`."""
