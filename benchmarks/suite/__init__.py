"""The suite: tiny real tasks of different kinds, with measured room, on which search methods are compared."""
