"""Packages of the wheel: llmzero_ray/, with actors/ and prompts/ inside it (package-dir in pyproject.toml).

setuptools finds packages by itself only where their folders are their names.
"""

from setuptools import find_packages, setup

LIBRARY = ["llmzero_ray", "llmzero_ray.*"]
MOUNTED = ["actors", "actors.*", "prompts", "prompts.*"]

setup(
    packages=[
        *find_packages(include=LIBRARY),
        *(f"llmzero_ray.{name}" for name in find_packages(include=MOUNTED)),
        "llmzero_ray.configs",
        "llmzero_ray.configs.compare",
        "llmzero_ray.configs.tasks",
        "llmzero_ray.configs.warm_start",
    ]
)
