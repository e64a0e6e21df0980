"""Whether this machine, and the hosts of a job, can do what a training needs: looked at before one is started."""
