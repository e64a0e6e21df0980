"""MuJoCo: engines, robots, cameras and drawing."""
