"""How long a test waits for what must come. However busy the machine, only a hang takes so long."""

PATIENCE = 900.0
