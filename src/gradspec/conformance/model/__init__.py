"""What all rooms of the judge speak in: frozen dataclasses, and one JSON codec for all of them."""
