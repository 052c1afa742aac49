"""Papers' tables: published figures, notes and grid in a TOML file each; in Python what a grid cannot say.

`names.tables` lists them without reading more than these files; `definition` reads one, `grid` makes the grid
of it, the engine runs that, and `seepage.report.published` shows the record. `draws`, `networks`, `probes`,
`rows_read`, `fished` and `cross_device` hold what the files name by "package.module:thing".
"""
