"""Several processes behind one port: who accepts, who serves, and what they tell each other."""
