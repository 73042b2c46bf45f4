"""Reward functions in VeRL's calling convention, one module each.

Standard library only: VeRL loads them in workers of its own.
"""
