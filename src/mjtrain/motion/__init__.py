"""Reference motions: their files, their kinematics on a robot, and how they are edited."""
