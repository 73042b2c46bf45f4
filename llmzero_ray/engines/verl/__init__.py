"""VeRL's own v1 GRPO trainer as an engine: FSDP2 actor, vLLM rollouts, LoRA; the same code path on GPUs and
on the CPU.

There are two processes. `engine.py` runs where an engine is needed and does not import VeRL. `driver.py` is a
child process that embeds the trainer and is a Ray driver of its own. One Ray job per slot keeps VeRL's actor
names and sockets apart, and ending that job ends every actor of the slot.
"""
