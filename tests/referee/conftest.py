"""The programs in ``exploits`` and ``honest`` are kernels, which nobody but the judge may run."""

collect_ignore_glob = ["exploits/*", "honest/*"]
