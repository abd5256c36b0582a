"""mlx-lm's converter as a child process: this module, with mlx-lm's arguments."""

from __future__ import annotations

from scheduler.engine.mlx_lm_import import file_limits_kept

with file_limits_kept():
    from mlx_lm.convert import main

if __name__ == "__main__":
    main()
