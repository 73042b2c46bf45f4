"""Converts a script that starts VeRL's trainer into the data of a search.yaml.

`read_script` finds the command with its overrides, and `config_of` puts each override at its place in a
search. Not here: writing the file (cli/init.py).
"""

from llmzero_ray.verl_script.placing import Translation, config_of, problem
from llmzero_ray.verl_script.reading import Script, read_script

__all__ = ["Script", "Translation", "config_of", "problem", "read_script"]
