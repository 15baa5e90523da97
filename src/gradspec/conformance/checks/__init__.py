"""What one call does not show: probes of the arithmetic, repeatability, guarded memory, promised errors."""
