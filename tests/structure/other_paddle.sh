#!/bin/sh
# Stands for a Python whose module paddle is of a version that nothing was tried on.
echo "version 0.0.1"
