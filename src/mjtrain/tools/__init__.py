"""Commands beside training: doctor, sweep, plotting, scaling, new projects."""
