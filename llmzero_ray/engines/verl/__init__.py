"""VeRL's own v1 GRPO trainer as an engine: FSDP2 actor, vLLM rollouts, LoRA; the same code path on GPUs and
on the CPU.

Two processes: `engine.py` runs wherever an engine is wanted and imports no VeRL; `driver.py` is a child
process, a Ray driver of its own, that embeds the trainer. One Ray job per slot keeps VeRL's actor names and
sockets apart, and the end of that job ends every actor of the slot at once.
"""
