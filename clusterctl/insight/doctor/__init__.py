"""Why a job hangs or has failed, from what its nodes showed."""
