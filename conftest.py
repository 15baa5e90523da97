"""Import the whole package the ordinary way first: pytest would give each file of doctests a module of its own."""

import importlib
import pkgutil

import gradspec

for module in pkgutil.walk_packages(gradspec.__path__, "gradspec."):
    importlib.import_module(module.name)
