"""Ray actors: thin shells that receive calls, ask the library what to do, and do it. `app.py` starts them."""
