"""What all packages of the judge share: frozen dataclasses, and one JSON codec for all of them."""
