"""The speed of training on a machine: measured by `bench`, predicted by `plan`, used by `hours=`; `doctor` tries it."""
