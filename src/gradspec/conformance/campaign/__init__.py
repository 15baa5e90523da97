"""Many cases on many processes: nothing lost, nothing counted twice, and no crash that ends the run."""
