"""Memory of GPUs and machines that a phase will take, estimated from the model's shape and the
configuration. Pure arithmetic.

Not here: the size of a card, and tables (cli/gpu_memory.py, cli/doctor/memory.py).
"""

from llmzero_ray.memory.host import host_moments
from llmzero_ray.memory.moments import moments
from llmzero_ray.memory.search_memory import SearchMemory, memory_facts, model_facts
from llmzero_ray.memory.setup import VERL_DEFAULTS, Setup, setup_of
from llmzero_ray.memory.shapes import KNOWN, ModelShape, model_shape, read_shape
from llmzero_ray.memory.sizes import GIB, Item, Moment, Range
from llmzero_ray.memory.verdict import Assessment, Remedy, Status, assess

__all__ = [
    "GIB",
    "KNOWN",
    "VERL_DEFAULTS",
    "Assessment",
    "Item",
    "ModelShape",
    "Moment",
    "Range",
    "Remedy",
    "SearchMemory",
    "Setup",
    "Status",
    "assess",
    "host_moments",
    "memory_facts",
    "model_facts",
    "model_shape",
    "moments",
    "read_shape",
    "setup_of",
]
