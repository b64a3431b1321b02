"""Operations of the networks, called like functions: fast ones, and beside each its plain twin."""
