"""From a script that starts VeRL's trainer to the data of a search.yaml.

`read_script` finds the command with its overrides, `config_of` puts each override where a search has it. Not
here: the file that is written (cli/init.py).
"""

from llmzero_ray.verl_script.placing import Translation, config_of, problem
from llmzero_ray.verl_script.reading import Script, read_script

__all__ = ["Script", "Translation", "config_of", "problem", "read_script"]
