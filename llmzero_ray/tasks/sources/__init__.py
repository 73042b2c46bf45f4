"""Data sets as tasks: the paper's four, user data, and every reasoning-gym task.

`prepare_source` makes a task from a task.yaml. Importing this package loads no pyarrow, Ray, datasets,
transformers or RDKit. To add a data set: write its adapter (base.py says what that is), then name it in
prepare.py and in ../task_yaml.py.
"""
